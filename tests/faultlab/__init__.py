"""The fault lab: seeded faults against simulated and real keepers, and what must stay true."""
