"""Engines' start-up logs: read, sorted by server, and held against the engines' arithmetic.

clean takes a log apart into lines, lines knows the wordings, server gathers what one start of a server printed, and
reconcile judges each figure with the help of one module an engine.
"""
