"""What the analysis says of single tensors, tried: parallax/runtime/verify/claims.py says what that is and how."""

from parallax.runtime.verify.claims import first_false, watched

__all__ = ["first_false", "watched"]
