"""The specification of the simulator, transcribed literally and slowly.

``markov_chain`` is the paper's server, slot by slot. ``simulation`` is one clock for everything
else: ``network`` says what arrives and what serves, ``replicas`` has the servers of the paper and
the engines with their KV memory. Every line should be checkable against the rules, and the fast
kernels must equal them event for event.
"""
