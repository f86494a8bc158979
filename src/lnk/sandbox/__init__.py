"""A program kept to what a policy gives it: the policy, its plan, and the ways in which this machine can do that."""
