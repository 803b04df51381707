"""The routes, a module for each kind of thing: `router` holds those of its module."""
