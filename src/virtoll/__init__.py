"""virtoll: what does virtualization cost your service?"""

import os

__version__ = "0.1.0"

# The BLAS of numpy, and that of SciPy, begins a thread for each CPU as it is loaded, and each spins until it has seen
# that there is nothing to do. Nothing here multiplies matrices large enough for a second one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
