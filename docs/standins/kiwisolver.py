"""What matplotlib's constrained layout needs of kiwisolver: a system of linear equations.

While a figure has room, all equations of a layout can hold at once, and inequalities hold by
themselves. Least squares then finds the solution that kiwisolver finds; required equations weigh
more, for figures without room."""

import numpy as np

__version__ = "1.4.0"
REQUIRED = 1e4


class Expression:
    """A sum of variables, each times a number, and a number: {variable: factor}, constant."""

    __hash__ = object.__hash__

    def __init__(self, terms=None, constant=0.0):
        self._terms = terms or {}
        self._constant = constant

    def __add__(self, other):
        other = _expression(other)
        terms = dict(self._all())
        for variable, factor in other._all().items():
            terms[variable] = terms.get(variable, 0.0) + factor
        return Expression(terms, self._constant + other._constant)

    def __mul__(self, factor):
        terms = {variable: factor * old for variable, old in self._all().items()}
        return Expression(terms, factor * self._constant)

    def __neg__(self):
        return self * -1.0

    def __sub__(self, other):
        return self + -_expression(other)

    def __rsub__(self, other):
        return _expression(other) - self

    def __truediv__(self, number):
        return self * (1.0 / number)

    __radd__, __rmul__ = __add__, __mul__

    def __eq__(self, other):
        return Constraint(self - other, "==")

    def __ge__(self, other):
        return Constraint(self - other, ">=")

    def __le__(self, other):
        return Constraint(self - other, "<=")

    def _all(self):
        return self._terms


class Variable(Expression):
    __hash__ = object.__hash__

    def __init__(self, name=""):
        super().__init__()
        self._name, self._value = name, 0.0

    def _all(self):
        return {self: 1.0}

    def name(self):
        return self._name

    def value(self):
        return self._value


class Constraint:
    def __init__(self, expression, op, strength="required"):
        self.expression, self.op, self.strength = expression, op, strength

    def __or__(self, strength):
        return Constraint(self.expression, self.op, strength)

    def __bool__(self):
        """Variables are keys of a dict: two of them are equal only if they are one."""
        return not self.expression._all()


class Solver:
    def __init__(self):
        self.equations = []
        self.suggested = {}

    def addConstraint(self, constraint):
        if constraint.op == "==":
            self.equations.append(constraint)

    def addEditVariable(self, variable, strength):
        self.suggested[variable] = 0.0

    def suggestValue(self, variable, value):
        self.suggested[variable] = value

    def updateVariables(self):
        """Suggested values are known, so they are put into the equations."""
        unknown = {}
        for equation in self.equations:
            for variable in equation.expression._all():
                if variable not in self.suggested:
                    unknown.setdefault(variable, len(unknown))
        matrix = np.zeros((len(self.equations), len(unknown)))
        right = np.zeros(len(self.equations))
        for row, equation in enumerate(self.equations):
            weight = REQUIRED if equation.strength == "required" else 1.0
            right[row] = -weight * equation.expression._constant
            for variable, factor in equation.expression._all().items():
                if variable in unknown:
                    matrix[row, unknown[variable]] += weight * factor
                else:
                    right[row] -= weight * factor * self.suggested[variable]
        solution = np.linalg.lstsq(matrix, right, rcond=None)[0]
        for variable, place in unknown.items():
            variable._value = float(solution[place])
        for variable, value in self.suggested.items():
            variable._value = float(value)


def _expression(value):
    return value if isinstance(value, Expression) else Expression(constant=float(value))
