"""virtoll: what does virtualization cost your service?"""

__version__ = "0.1.0"
