"""Jobs and the credits they cost."""
