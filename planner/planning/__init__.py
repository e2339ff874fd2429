"""A question is asked of strategies, and what they propose is packed, judged, bounded and reported."""
