"""The verbs of the keeper. Each one is claim, act, record; reads touch none of it."""
