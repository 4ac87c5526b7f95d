// The elementwise operations of update programs: their names, and what each computes of elements x, y (and z).
//
// Each is the arithmetic of TensorFlow's op of that name in the type of its arguments. Those that IEEE 754 defines, and
// so all but rsqrt, reciprocal, pow, exp and log, are TensorFlow's results bit for bit; -ffp-contract=off keeps them so.
#ifndef PARALLAX_NATIVE_ROWS_OPERATIONS_H_
#define PARALLAX_NATIVE_ROWS_OPERATIONS_H_

#include <cmath>

namespace parallax_rows {

#define ROWS_INLINE inline __attribute__((always_inline))
#define ROWS_MATH(Name, function)                                                 \
  ROWS_INLINE float Name(float x) { return __builtin_##function##f(x); }          \
  ROWS_INLINE double Name(double x) { return __builtin_##function(x); }
ROWS_MATH(Absolute, fabs)
ROWS_MATH(SquareRoot, sqrt)
ROWS_MATH(Exponential, exp)
ROWS_MATH(Logarithm, log)
ROWS_MATH(Floor, floor)
#undef ROWS_MATH
ROWS_INLINE float Power(float x, float y) { return __builtin_powf(x, y); }
ROWS_INLINE double Power(double x, double y) { return __builtin_pow(x, y); }

// Of one element. A NaN stays one, as does a zero's sign.
#define ROWS_UNARY(X)                                                             \
  X(neg, -x)                                                                      \
  X(abs, Absolute(x))                                                             \
  X(sign, x > T(0) ? T(1) : x < T(0) ? T(-1) : x)                                 \
  X(square, x * x)                                                                \
  X(sqrt, SquareRoot(x))                                                          \
  X(rsqrt, T(1) / SquareRoot(x))                                                  \
  X(reciprocal, T(1) / x)                                                         \
  X(exp, Exponential(x))                                                          \
  X(log, Logarithm(x))                                                            \
  X(floor, Floor(x))                                                              \
  X(not, x != T(0) ? T(0) : T(1))                                                 \
  X(fill, x)

// Of two. The order in max and min is Eigen's: where one is NaN, the first is taken.
#define ROWS_BINARY(X)                                                            \
  X(add, x + y)                                                                   \
  X(sub, x - y)                                                                   \
  X(mul, x * y)                                                                   \
  X(div, x / y)                                                                   \
  X(min, y < x ? y : x)                                                           \
  X(max, x < y ? y : x)                                                           \
  X(pow, Power(x, y))                                                             \
  X(squared_difference, (x - y) * (x - y))                                        \
  X(div_no_nan, y == T(0) ? T(0) : x / y)                                         \
  X(mul_no_nan, y == T(0) ? T(0) : x * y)                                         \
  X(gt, x > y ? T(1) : T(0))                                                      \
  X(ge, x >= y ? T(1) : T(0))                                                     \
  X(lt, x < y ? T(1) : T(0))                                                      \
  X(le, x <= y ? T(1) : T(0))                                                     \
  X(eq, x == y ? T(1) : T(0))                                                     \
  X(ne, x != y ? T(1) : T(0))                                                     \
  X(and, (x != T(0)) & (y != T(0)) ? T(1) : T(0))                                 \
  X(or, (x != T(0)) | (y != T(0)) ? T(1) : T(0))

// select: of three, y where x is true, else z.

enum class Operation : int {
#define X(name, value) k_##name,
  ROWS_UNARY(X) ROWS_BINARY(X)
#undef X
      k_select,
  kCount
};

// What the operation gives of numbers.
template <typename T>
T Apply(Operation operation, T x, T y, T z) {
  switch (operation) {
#define X(name, value)         \
  case Operation::k_##name:    \
    return value;
    ROWS_UNARY(X) ROWS_BINARY(X)
#undef X
    default:
      return x != T(0) ? y : z;
  }
}

}  // namespace parallax_rows

#endif
