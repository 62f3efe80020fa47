"""Flower as a transport: sealed messages between a ServerApp and SuperNodes, and from a
SuperNode to its party.
"""
