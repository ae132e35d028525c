"""HTTP helpers shared by envd and the port proxy."""
