"""Will it fit: a model on GPUs under an engine.

case settles what is asked; judge puts it to the engine (its cache), the weights (their share of a GPU, spread says
where layers lie) and the budget (what an engine leaves for the cache); plan decides and bisects. solve and advice ask
again with other settings, launch hands the plan over, document says it all.
"""
