"""Machines: run, spawn, put. Everything virtoll does to a machine goes through a Host and its ledger."""
