"""Recipes and jobs as scripts."""
