"""Real caches of the installed transformers, weighed. Nothing here knows what kvsize predicts.

twin builds a model from a config and feeds it, paging runs continuous batching; probe reads a geometry off the tensors
of a cache, measure weighs their storage.
"""
