"""The study file and what follows from it: typed values, the randomised plan. It names no machine."""
