// The elementwise operations of update programs: their names, and their results for elements x, y (and z).
//
// Each returns the same result as TensorFlow's op of that name, bit for bit. TensorFlow's packages are compiled for
// AVX, without fused multiply-add, and so is this (parallax/base/setup/libraries.py).
#ifndef PARALLAX_NATIVE_ROWS_OPERATIONS_H_
#define PARALLAX_NATIVE_ROWS_OPERATIONS_H_

#include "Eigen/Core"

namespace parallax_rows {

#define ROWS_INLINE inline __attribute__((always_inline))
ROWS_INLINE float Absolute(float x) { return __builtin_fabsf(x); }
ROWS_INLINE double Absolute(double x) { return __builtin_fabs(x); }
ROWS_INLINE float SquareRoot(float x) { return __builtin_sqrtf(x); }
ROWS_INLINE double SquareRoot(double x) { return __builtin_sqrt(x); }
ROWS_INLINE float Floor(float x) { return __builtin_floorf(x); }
ROWS_INLINE double Floor(double x) { return __builtin_floor(x); }
#undef ROWS_INLINE

// Unary.
#define ROWS_UNARY(X)                                                             \
  X(neg, -x)                                                                      \
  X(abs, Absolute(x))                                                             \
  X(sign, x > T(0) ? T(1) : x < T(0) ? T(-1) : Absolute(x))                       \
  X(square, x * x)                                                                \
  X(sqrt, SquareRoot(x))                                                          \
  X(floor, Floor(x))                                                              \
  X(not, x != T(0) ? T(0) : T(1))                                                 \
  X(fill, x)

// Binary. Of equal operands, such as zeros, min and max return the second; of a NaN and another value, the NaN.
#define ROWS_BINARY(X)                                                            \
  X(add, x + y)                                                                   \
  X(sub, x - y)                                                                   \
  X(mul, x * y)                                                                   \
  X(div, x / y)                                                                   \
  X(min, x != x ? x : x < y ? x : y)                                              \
  X(max, x != x ? x : x > y ? x : y)                                              \
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

// Operations that IEEE 754 does not define. Eigen has a vectorized formula, which TensorFlow uses for all but the last
// few elements of a tensor, and another one for single elements.
#define ROWS_EIGEN_UNARY(X)                                                       \
  X(rsqrt, x.rsqrt())                                                             \
  X(reciprocal, x.inverse())                                                      \
  X(exp, x.exp())                                                                 \
  X(log, x.log())
#define ROWS_EIGEN_BINARY(X) X(pow, x.pow(y))

// select, ternary: y where x is true, else z.

enum class Operation : int {
#define X(name, value) k_##name,
  ROWS_UNARY(X) ROWS_EIGEN_UNARY(X) ROWS_BINARY(X) ROWS_EIGEN_BINARY(X)
#undef X
      k_select,
};

inline int OperandsOf(Operation operation) {
  return operation < Operation::k_add ? 1 : operation < Operation::k_select ? 2 : 3;
}

// The result of the operation on scalars.
template <typename T>
T Apply(Operation operation, T x_, T y_, T z_) {
  const T x = x_, y = y_;
  switch (operation) {
#define X(name, value)      \
  case Operation::k_##name: \
    return value;
    ROWS_UNARY(X) ROWS_BINARY(X)
#undef X
    default:
      break;
  }
  return [operation](const Eigen::Array<T, 1, 1>& x, const Eigen::Array<T, 1, 1>& y, T z) -> T {
    switch (operation) {
#define X(name, value)      \
  case Operation::k_##name: \
    return (value)(0);
      ROWS_EIGEN_UNARY(X) ROWS_EIGEN_BINARY(X)
#undef X
      default:
        return x(0) != T(0) ? y(0) : z;
    }
  }(Eigen::Array<T, 1, 1>(x), Eigen::Array<T, 1, 1>(y), z_);
}

}  // namespace parallax_rows

#endif
