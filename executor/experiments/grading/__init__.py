"""How answers are judged: the graders, and models as judges."""
