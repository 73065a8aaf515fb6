"""Who watches: counters of an instance from outside (cgroups, process trees) and from inside, and the host's."""
