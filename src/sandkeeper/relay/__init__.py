"""The one way by which a request reaches a server that is not trusted, and its answer comes back.

The engine's port proxy and the preview gateway use it. It knows neither sandboxes nor projects:
its callers decide who may ask, which server it is, and which headers they add.
"""
