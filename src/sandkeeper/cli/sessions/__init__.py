"""Commands for sessions, pools and jobs."""
