"""Providers: what each wants on the wire, on top of the official SDKs. Importing a module here imports no SDK."""
