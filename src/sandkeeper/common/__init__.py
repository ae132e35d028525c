"""Small modules that every layer and the engine may use; they import nothing of the rest."""
