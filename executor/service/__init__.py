"""Jobs over HTTP: the application, its routes, and who may ask for what."""
