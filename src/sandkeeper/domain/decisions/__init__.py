"""Pure decision functions: given a record and the time, return what to do."""
