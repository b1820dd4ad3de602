"""
What a guarded request, task or call costs: ``make bench``, or ``python -m benchmarks http``.

Every figure is a ratio of variants that take turns in one run. Each variant is a process of its
own (`worker`), in the environment that it needs (`environments`), with a database of its own on one
server. Beside ours stand the bare view, the same protocol written by hand (the floor), and other
packages.
"""
