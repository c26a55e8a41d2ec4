"""What others say a cache takes, held against what it takes.

formulas and published are their formulas, tally evaluates them over models. claims looks for what yields a claimed
figure: mistakes in the geometry (folded: equal layers counted once), or another reading of the question.
"""
