"""Learned routing policies, fitted on what two arms made of the same tasks."""
