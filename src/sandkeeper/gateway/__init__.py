"""The preview gateway: one address for each project, that stays, and wakes what sleeps.

A request passes these, in this order: `application` finds the preview of its host, `admission` who
asks, `domain.gateway` what it is and what becomes of it, `relaying` hands it to the app, `pages`
answers otherwise, and `records` notes what happened.
"""
