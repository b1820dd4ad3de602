"""
Pairs of features that no test has put together, made by a covering array.

`features.py` has the features of a request and their values, `features_of_tasks.py` those of a
task: a contributor adds a line. Each case is one value of each feature, and asks one question: does
a guarded project leave behind what the unguarded one does, once? What is meant to differ stands in
`expected.py`, with its rule.

``make pairs`` runs them; ``make pairs SEED=2026-11-23`` repeats those of a day.
"""
