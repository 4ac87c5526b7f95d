// The interpreter.
//
// A row is processed in chunks of columns. All updates of a chunk are made in a vector file, which stays in the L1
// cache; the loop over a vector has a constant length, so it compiles to a few SIMD instructions.
#include "interpret.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace parallax_rows {
namespace {

template <typename T, int B>
void Execute(const std::vector<Instruction>& body, T* file, const T* scalars) {
  for (const Instruction& one : body) {
    T* __restrict__ out = file + one.out * B;
    switch (one.code) {
#define ROWS_CASE(name, form) case static_cast<int>(Operation::k_##name) * kForms + form
#define ROWS_LOOP(left, right, value)                  \
  _Pragma("GCC ivdep") for (int i = 0; i < B; ++i) { \
    const T x = left, y = right;                       \
    (void)y;                                           \
    out[i] = value;                                    \
  }                                                    \
  break;
#define ROWS_ONE(name, value)         \
  ROWS_CASE(name, kVectors) : {       \
    const T* vx = file + one.x * B;   \
    ROWS_LOOP(vx[i], T(0), value)     \
  }
      ROWS_UNARY(ROWS_ONE)
#define ROWS_TWO(name, value)                                       \
  ROWS_CASE(name, kVectors) : {                                     \
    const T *vx = file + one.x * B, *vy = file + one.y * B;         \
    ROWS_LOOP(vx[i], vy[i], value)                                  \
  }                                                                 \
  ROWS_CASE(name, kVectorScalar) : {                                \
    const T *vx = file + one.x * B, sy = scalars[one.y];            \
    ROWS_LOOP(vx[i], sy, value)                                     \
  }                                                                 \
  ROWS_CASE(name, kScalarVector) : {                                \
    const T sx = scalars[one.x], *vy = file + one.y * B;            \
    ROWS_LOOP(sx, vy[i], value)                                     \
  }
      ROWS_BINARY(ROWS_TWO)
#define ROWS_EIGEN(name, value)                                              \
  ROWS_CASE(name, kVectors) : {                                              \
    using Vector = Eigen::Array<T, B, 1>;                                    \
    const Eigen::Map<const Vector> x(file + one.x * B), y(file + one.y * B); \
    Eigen::Map<Vector>(file + one.out * B) = value;                          \
    break;                                                                   \
  }
      ROWS_EIGEN_UNARY(ROWS_EIGEN)
      ROWS_EIGEN_BINARY(ROWS_EIGEN)
      ROWS_CASE(fill, kScalarOnly) : {
        const T sx = scalars[one.x];
        for (int i = 0; i < B; ++i) out[i] = sx;
        break;
      }
      ROWS_CASE(select, kVectors) : {
        const T *vx = file + one.x * B, *vy = file + one.y * B, *vz = file + one.z * B;
        _Pragma("GCC ivdep") for (int i = 0; i < B; ++i) {
          const T y = vy[i], z = vz[i];
          out[i] = vx[i] != T(0) ? y : z;
        }
        break;
      }
    }
  }
}

// Makes an update in a vector file. `kept` has space for all states.
template <typename T, int B>
void RunUpdate(const Instructions& instructions, const T* scalars, T* file, T* kept) {
  Execute<T, B>(instructions.body, file, scalars);
  if (instructions.sets.size() == 1) {
    std::memcpy(file + instructions.sets[0].state * B, file + instructions.sets[0].from * B, sizeof(T) * B);
  } else if (!instructions.sets.empty()) {  // all take effect simultaneously
    T* to = kept;
    for (const Set& set : instructions.sets) std::memcpy(to, file + set.from * B, sizeof(T) * B), to += B;
    to = kept;
    for (const Set& set : instructions.sets) std::memcpy(file + set.state * B, to, sizeof(T) * B), to += B;
  }
}

// A vector file, with space for all states. Vectors are aligned to 64 bytes, or 32.
template <typename T, int B>
class Files {
 public:
  explicit Files(const Code& code) : memory_((code.vectors + code.states) * B + 64 / sizeof(T)) {
    const size_t past = reinterpret_cast<uintptr_t>(memory_.data()) % 64 / sizeof(T);
    file = memory_.data() + (64 / sizeof(T) - past);
    kept = file + code.vectors * B;
  }

  T *file, *kept;

 private:
  std::vector<T> memory_;
};

template <typename T>
struct Limits;
// `unit` is a quarter of half a unit in the last place, relative. Below `tiny` a state may not follow its factor,
// because its product with a scalar may be rounded to zero; so may a bound below `least`, which is assumed to be that.
template <>
struct Limits<float> {
  static constexpr double unit = 0x1p-27, least = 0x1p-90, tiny = 0x1p-90;
};
template <>
struct Limits<double> {
  static constexpr double unit = 0x1p-56, least = 0x1p-900, tiny = 0x1p-900;
};

template <typename T, int B>
class Chunk {
 public:
  Chunk(const Table<T>& table)
      : table_(table), code_(table.code), ring_(table.ring), files_(code_), file_(files_.file), kept_(files_.kept) {}

  void Bring(const Row<T>& row) {
    for (int64_t first = 0; first < table_.width; first += B) {
      const int count = static_cast<int>(std::min<int64_t>(B, table_.width - first));
      const int64_t begin = row.row * table_.width + first;
      for (int state = 0; state < code_.states; ++state) {
        Load(table_.states[state] + begin, count, file_ + state * B);
      }
      if (row.gradient) {
        for (int number = 0; number < code_.gradients; ++number) {
          Load(row.gradient + number * table_.width + first, count, file_ + (code_.states + number) * B);
        }
        Update(code_.made, ring_.File(ring_.last()));
      } else {
        CatchUp(ring_.last() - row.behind + 1, ring_.last());
      }
      for (int state = 0; state < code_.states; ++state) {
        std::memcpy(table_.states[state] + begin, file_ + state * B, sizeof(T) * count);
      }
    }
  }

 private:
  static constexpr int64_t kStep = 8;  // minimum of updates before each check whether the rest may be skipped

  static void Load(const T* from, int count, T* vector) {
    std::memcpy(vector, from, sizeof(T) * count);
    for (int i = count; i < B; ++i) vector[i] = vector[0];  // so that no lane takes another path
  }

  void Update(const Instructions& instructions, const T* scalars) {
    RunUpdate<T, B>(instructions, scalars, file_, kept_);
  }

  // Makes the updates from one number to another, with a zero gradient.
  void CatchUp(int64_t next, int64_t until) {
    for (int64_t look = next + kStep; next <= until; ++next) {
      if (next == look && until - next >= kStep) {
        wait_ = kStep;
        if (code_.covered && MayCut(next, until)) return Cut(next);
        look = next + std::min(wait_, until);
        if (next >= ring_.same_since()) {
          if (ChangesNothing(next)) return;
          continue;
        }
      }
      Update(code_.missed, ring_.File(next));
    }
  }

  // Makes an update. Returns whether no bit of any state has changed.
  bool ChangesNothing(int64_t number) {
    const size_t size = sizeof(T) * B * code_.states;
    before_.assign(file_, file_ + B * code_.states);
    Update(code_.missed, ring_.File(number));
    return std::memcmp(before_.data(), file_, size) == 0;
  }

  static double PowerOf(double base, double exponent) {
    if (exponent == 0) return 1;
    if (exponent == 1) return base;
    if (exponent == -1) return 1 / base;
    if (exponent == 0.5) return std::sqrt(base);
    if (exponent == -0.5) return 1 / std::sqrt(base);
    return std::pow(base, exponent);
  }

  // The greatest power of a number between `least` and `greatest`, with an exponent that the leaf has.
  static double Greatest(double least, double greatest, const Leaf& leaf) {
    return std::max(std::max(PowerOf(least, leaf.low), PowerOf(least, leaf.high)),
                    std::max(PowerOf(greatest, leaf.low), PowerOf(greatest, leaf.high)));
  }

  // Whether the updates from `next` on change the states only by their factors.
  //
  // The bound of update j is at most the bound of `next` times q^(j - next) * Z: q bounds the effect of an update on it
  // by the decay of the leaves, Z the effect of the difference between its scalars and those of `next`. The state
  // itself shrinks by at most the least factor B per update. With q < B, therefore, a value that is below half a unit
  // in the last place of the state now (and after one update) remains so.
  bool MayCut(int64_t next, int64_t until) {
    for (size_t number = 0; number < code_.moves.size(); ++number) {
      if (!MoveIsOver(number, next, until)) return false;
    }
    return true;
  }

  double Limit(const Move& move, int64_t next) {
    const double least = ring_.Factor(next, move.state).least;
    double q = 1, z = 1;
    for (const Leaf& leaf : move.leaves) {
      if (leaf.is_state) {
        const Extent& factor = ring_.Factor(next, leaf.index);
        q *= Greatest(factor.least, factor.greatest, leaf);
      } else {
        const Extent& scalar = ring_.Scalar(next, leaf.index);
        const double now = std::fabs(static_cast<double>(ring_.File(next)[leaf.index]));
        if (scalar.least == scalar.greatest) continue;
        if (!(now > 0 && now < std::numeric_limits<double>::infinity())) return -1;  // no multiple of it bounds others
        z *= std::max(1.0, Greatest(scalar.least / now, scalar.greatest / now, leaf));
      }
    }
    const bool shrinks = q < 1 && q < least;  // false with NaN, too
    decay_ = q / least;
    return shrinks && z < std::numeric_limits<double>::infinity() ? Limits<T>::unit * least / z : -1;
  }

  // Whether a bound is over in all lanes: below the limit, or zero because a leaf is.
  //
  // Near zero, numbers do not follow their factors: a subtracted value may be rounded to zero. A leaf in a denominator
  // that may get there counts as zero. A leaf elsewhere counts as `tiny`, which is above the value where it may stop
  // decreasing, and then the denominators in its term count as zero; the bound must be over with that, too.
  bool MoveIsOver(size_t number, int64_t next, int64_t until) {
    const Move& move = code_.moves[number];
    const T limit = static_cast<T>(Limit(move, next));
    std::fill(zero_, zero_ + B, false);
    std::fill(sinks_, sinks_ + B, false);
    before_.assign(file_, file_ + B * code_.states);
    bool sinking = false, over = true;
    for (const Leaf& leaf : move.leaves) {
      if (!leaf.is_state) {
        if (leaf.low > 0 && ring_.Scalar(next, leaf.index).greatest == 0) std::fill(zero_, zero_ + B, true);
        continue;
      }
      T* values = file_ + leaf.index * B;
      const double shrunk = std::pow(std::min(1.0, ring_.Factor(next, leaf.index).least), until - next + 1.0);
      const T tiny = static_cast<T>(std::min(Limits<T>::tiny / shrunk, double(std::numeric_limits<T>::max())));
      for (int i = 0; i < B; ++i) {
        const bool is_zero = values[i] == T(0), may_sink = !is_zero & (Absolute(values[i]) < tiny);
        zero_[i] |= is_zero & (leaf.low > 0);
        if (leaf.high > 0) sinks_[i] |= may_sink;
        if (leaf.low < 0 && may_sink) {
          values[i] = T(0);
          over &= leaf.high <= 0;
        }
        sinking |= may_sink & (leaf.high > 0);
      }
    }
    over = over && IsBelow(number, next, limit, false);
    if (over && sinking) over = Sink(move) && IsBelow(number, next, limit, true);
    std::copy(before_.begin(), before_.end(), file_);
    return over;
  }

  bool Sink(const Move& move) {
    for (const Leaf& leaf : move.leaves) {
      if (!leaf.is_state) continue;
      if (leaf.low < 0 && leaf.high > 0) return false;
      T *values = file_ + leaf.index * B, *before = before_.data() + leaf.index * B;
      for (int i = 0; i < B; ++i) {
        if (leaf.low < 0) values[i] = T(0);
        if (leaf.high > 0) values[i] = before[i] < T(0) ? T(-Limits<T>::tiny) : T(Limits<T>::tiny);
      }
    }
    return true;
  }

  bool IsBelow(size_t number, int64_t next, T limit, bool sunk) {
    Execute<T, B>(code_.bounds.body, file_, ring_.File(next));
    const T* bound = file_ + code_.bounds.results[number] * B;
    const T* state = before_.data() + code_.moves[number].state * B;
    bool below = true;
    T excess = 1;
    for (int i = 0; i < B; ++i) {
      const T size = std::max(Absolute(bound[i]), T(Limits<T>::least)), allowed = limit * Absolute(state[i]);
      const bool none = zero_[i] & (bound[i] == T(0) | sunk), unasked = sunk & !sinks_[i];
      const bool is_nan = state[i] != state[i];
      const bool is_over = none | unasked | is_nan | ((bound[i] == bound[i]) & (size < allowed));
      below &= is_over;
      const T ratio = is_over ? T(1) : size / allowed;
      excess = ratio > excess ? ratio : excess;
    }
    if (!below) Wait(excess);
    return below;
  }

  // A bound that exceeds the limit by this factor, and approaches it by `decay_` per update, need not be checked
  // earlier.
  void Wait(double excess) {
    if (decay_ > 0 && decay_ < 1 && excess < std::numeric_limits<T>::max()) {
      wait_ = std::max(wait_, static_cast<int64_t>(std::log(excess) / -std::log(decay_)));
    }
  }

  // Multiplies the states by their factors of the updates from `next` on. Zero, infinite and NaN values stay.
  void Cut(int64_t next) {
    for (int state = 0; state < code_.states; ++state) {
      const double product = ring_.Product(next, state);
      if (product == 1) continue;
      T* values = file_ + state * B;
      for (int i = 0; i < B; ++i) {
        const double value = values[i];
        values[i] = value - value == 0 && value != 0 ? static_cast<T>(value * product) : values[i];
      }
    }
  }

  const Table<T>& table_;
  const Code& code_;
  const Ring<T>& ring_;
  Files<T, B> files_;
  T *const file_, *const kept_;
  std::vector<T> before_;
  bool zero_[B], sinks_[B];  // by lane: results of MoveIsOver
  double decay_ = 1;  // of the bound being checked, per update, relative to its state
  int64_t wait_ = kStep;  // updates until the next check
};

template <typename T, int B>
void BringChunks(const Table<T>& table, const Row<T>* rows, int64_t count) {
  Chunk<T, B> chunk(table);
  for (int64_t i = 0; i < count; ++i) chunk.Bring(rows[i]);
}

}  // namespace

template <typename T>
void BringRows(const Table<T>& table, const Row<T>* rows, int64_t count) {
  if (table.width <= 8) return BringChunks<T, 8>(table, rows, count);
  if (table.width <= 16) return BringChunks<T, 16>(table, rows, count);
  if (table.width <= 32) return BringChunks<T, 32>(table, rows, count);
  BringChunks<T, 64>(table, rows, count);
}

// Elements of many rows form a vector: one instruction is decoded for all of them.
template <typename T>
void UpdateOnlyRows(const Code& code, const T* scalars, T* const* states, int64_t width, const int64_t* rows,
                    const T* gradients, int64_t count) {
  constexpr int B = 128;
  Files<T, B> files(code);
  const int64_t all = count * width;
  // Calls `move` with the index of a row, a column, a position in the vector, and the number of bytes that follow.
  const auto pieces = [&](int64_t first, int64_t size, const auto& move) {
    for (int64_t done = 0; done < size;) {
      const int64_t row = (first + done) / width, column = (first + done) % width;
      const int64_t piece = std::min(width - column, size - done);
      move(row, column, done, sizeof(T) * piece);
      done += piece;
    }
  };
  for (int64_t first = 0; first < all; first += B) {
    const int64_t size = std::min<int64_t>(B, all - first);
    for (int state = 0; state < code.states; ++state) {
      T *vector = files.file + state * B, *from = states[state];
      pieces(first, size, [&](int64_t row, int64_t column, int64_t lane, size_t n) {
        std::memcpy(vector + lane, from + rows[row] * width + column, n);
      });
      std::fill(vector + size, vector + B, vector[0]);  // so that no lane takes another path
    }
    for (int number = 0; number < code.gradients; ++number) {
      T* gradient = files.file + (code.states + number) * B;
      const T* from = gradients + number * width;
      pieces(first, size, [&](int64_t row, int64_t column, int64_t lane, size_t n) {
        std::memcpy(gradient + lane, from + row * code.gradients * width + column, n);
      });
      std::fill(gradient + size, gradient + B, gradient[0]);
    }
    RunUpdate<T, B>(code.made, scalars, files.file, files.kept);
    for (int state = 0; state < code.states; ++state) {
      T *vector = files.file + state * B, *to = states[state];
      pieces(first, size, [&](int64_t row, int64_t column, int64_t lane, size_t n) {
        std::memcpy(to + rows[row] * width + column, vector + lane, n);
      });
    }
  }
}

template void UpdateOnlyRows<float>(const Code&, const float*, float* const*, int64_t, const int64_t*, const float*,
                                    int64_t);
template void UpdateOnlyRows<double>(const Code&, const double*, double* const*, int64_t, const int64_t*, const double*,
                                     int64_t);
template void BringRows<float>(const Table<float>&, const Row<float>*, int64_t);
template void BringRows<double>(const Table<double>&, const Row<double>*, int64_t);

}  // namespace parallax_rows
