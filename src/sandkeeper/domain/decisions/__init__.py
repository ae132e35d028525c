"""Pure decision functions: given a record and the time, what is to be done."""
