"""Tables and figures of the paper, and experiments that go beyond it: what was published against
what is measured.
"""
