"""What happens to one treatment: deployed, measured, proved. It writes nothing down for good."""
