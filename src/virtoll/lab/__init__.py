"""The wiring around the instance: generator, SUT and origin namespaces, joined by links of virtoll's own."""
