"""What runs inside a sandbox: `bundle.py` joins these modules to one script, and sends its text.

It goes to whatever Python the sandbox has. So it needs nothing but the standard library, and
nothing newer than Python 3.7. A sandbox may answer anything: the keeper checks all that it reports.
"""
