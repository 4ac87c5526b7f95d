// The interpreter.
//
// A row is taken in chunks of columns. All updates of a chunk are made in a file of vectors, which stays in the nearest
// cache; the loop over a vector has a constant length, so it becomes a few vector instructions of the processor.
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
#define ROWS_EIGEN(name, value)                                                                  \
  ROWS_CASE(name, kVectors) : {                                                                 \
    using Vector = Eigen::Array<T, B, 1>;                                                       \
    const Eigen::Map<const Vector> x(file + one.x * B), y(file + one.y * B);                    \
    Eigen::Map<Vector>(file + one.out * B) = value;                                             \
    break;                                                                                      \
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

template <typename T>
struct Limits;
// `unit` is a quarter of half a unit in the last place, relative; below `tiny` a product with a scalar may be rounded
// to zero, and below `least` a bound is taken to be that.
template <>
struct Limits<float> {
  static constexpr double unit = 0x1p-27, least = 0x1p-90, tiny = 0x1p-100;
};
template <>
struct Limits<double> {
  static constexpr double unit = 0x1p-56, least = 0x1p-900, tiny = 0x1p-950;
};

template <typename T, int B>
class Chunk {
 public:
  Chunk(const Table<T>& table)
      : table_(table),
        code_(table.code),
        ring_(table.ring),
        memory_((code_.vectors + code_.states) * B + 64 / sizeof(T)) {
    const size_t past = reinterpret_cast<uintptr_t>(memory_.data()) % 64 / sizeof(T);
    file_ = memory_.data() + (64 / sizeof(T) - past);  // vectors begin at multiples of 64 bytes, or 32
    kept_ = file_ + code_.vectors * B;
    volatile T small = std::numeric_limits<T>::min();
    flushes_ = small * T(0.5) == T(0);
  }

  void Bring(const Row<T>& row) {
    for (int64_t first = 0; first < table_.width; first += B) {
      const int count = static_cast<int>(std::min<int64_t>(B, table_.width - first));
      const int64_t begin = row.row * table_.width + first;
      for (int state = 0; state < code_.states; ++state) {
        Load(table_.states[state] + begin, count, file_ + state * B);
      }
      if (row.gradient) {
        Load(row.gradient + first, count, file_ + code_.states * B);
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
  static constexpr int64_t kStep = 8;  // updates between two looks whether the rest may be cut, and before the first

  static void Load(const T* from, int count, T* vector) {
    std::memcpy(vector, from, sizeof(T) * count);
    for (int i = count; i < B; ++i) vector[i] = vector[0];  // so that no lane differs in kind
  }

  void Update(const Instructions& instructions, const T* scalars) {
    Execute<T, B>(instructions.body, file_, scalars);
    if (instructions.sets.size() == 1) {
      std::memcpy(file_ + instructions.sets[0].state * B, file_ + instructions.sets[0].from * B, sizeof(T) * B);
    } else if (!instructions.sets.empty()) {  // all take effect together
      T* to = kept_;
      for (const Set& set : instructions.sets) std::memcpy(to, file_ + set.from * B, sizeof(T) * B), to += B;
      to = kept_;
      for (const Set& set : instructions.sets) std::memcpy(file_ + set.state * B, to, sizeof(T) * B), to += B;
    }
  }

  // Makes the updates from one number to another, the gradient being zero.
  void CatchUp(int64_t next, int64_t until) {
    for (int64_t made = 0; next <= until; ++next, ++made) {
      if (made % kStep == 0 && made > 0 && until - next >= kStep) {
        if (code_.covered && MayCut(next, until)) return Cut(next);
        if (next >= ring_.same_since()) {
          if (ChangesNothing(next)) return;
          continue;
        }
      }
      Update(code_.missed, ring_.File(next));
    }
  }

  // Makes an update. Whether no bit of any state has changed by it.
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

  // The greatest power of a number between `least` and `greatest` with an exponent that the leaf has.
  static double Greatest(double least, double greatest, const Leaf& leaf) {
    return std::max(std::max(PowerOf(least, leaf.low), PowerOf(least, leaf.high)),
                    std::max(PowerOf(greatest, leaf.low), PowerOf(greatest, leaf.high)));
  }

  // Whether the updates from `next` on change the states only by their factors.
  //
  // The bound of update j is at most the bound of `next` times q^(j - next) * Z: q bounds what an update does to it by
  // the decay of the leaves, Z what the scalars' difference from those of `next` does. The state itself shrinks by at
  // most the least factor B an update. With q < B, so, what is below half a unit in the last place of the state now
  // (and after one update) remains so.
  bool MayCut(int64_t next, int64_t until) {
    if (code_.moves.empty()) return true;
    Execute<T, B>(code_.bounds.body, file_, ring_.File(next));
    for (size_t number = 0; number < code_.moves.size(); ++number) {
      if (!MoveIsOver(number, next, until)) return false;
    }
    return true;
  }

  double Limit(const Move& move, int64_t next) const {
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
        z *= std::max(1.0, Greatest(scalar.least / now, scalar.greatest / now, leaf));
      }
    }
    const bool shrinks = q < 1 && q < least;  // false with NaN, too
    return shrinks && z < std::numeric_limits<double>::infinity() ? Limits<T>::unit * least / z : -1;
  }

  bool MoveIsOver(size_t number, int64_t next, int64_t until) {
    const Move& move = code_.moves[number];
    const T limit = static_cast<T>(Limit(move, next));
    const T *state = file_ + move.state * B, *bound = file_ + code_.bounds.results[number] * B;
    bool gone = false;  // a scalar takes all of it away
    T zero[B] = {}, small[B] = {};
    for (const Leaf& leaf : move.leaves) {
      if (leaf.low <= 0) continue;
      if (!leaf.is_state) {
        gone |= ring_.Scalar(next, leaf.index).greatest == 0;
        continue;
      }
      const T tiny = static_cast<T>(Tiny(leaf, next, until));
      const T* values = file_ + leaf.index * B;
      for (int i = 0; i < B; ++i) {
        zero[i] = values[i] == T(0) ? T(1) : zero[i];
        small[i] = Absolute(values[i]) < tiny ? T(1) : small[i];
      }
    }
    if (!gone && !Vanishes(move, next, until)) return false;
    int over = 0;
    for (int i = 0; i < B; ++i) {
      const T size = Absolute(bound[i]), value = state[i];
      const bool none = (gone | (zero[i] != T(0))) & (size == T(0));
      const T at_least = size < T(Limits<T>::least) ? T(Limits<T>::least) : size;
      const bool below = (small[i] == T(0)) & (size == size) & (at_least < limit * Absolute(value));
      over += none | below | (value != value);
    }
    return over == B;
  }

  // Below what a leaf may be rounded to zero or stay where it is, in place of what its factor makes of it.
  double Tiny(const Leaf& leaf, int64_t next, int64_t until) const {
    return flushes_ ? Limits<T>::tiny : Limits<T>::tiny / Shrunk(leaf, next, until);
  }

  double Shrunk(const Leaf& leaf, int64_t next, int64_t until) const {
    const double least = std::min(1.0, ring_.Factor(next, leaf.index).least);
    return std::pow(least, static_cast<double>(until - next + 1));
  }

  // A leaf in a denominator may become zero by rounding. Where it may, the bounds are those with zero in its place.
  bool Vanishes(const Move& move, int64_t next, int64_t until) {
    bool some = false;
    before_.assign(file_, file_ + B * code_.states);
    for (const Leaf& leaf : move.leaves) {
      if (leaf.low >= 0 || !leaf.is_state) continue;
      const double shrunk = Shrunk(leaf, next, until);
      T* values = file_ + leaf.index * B;
      bool may = false;
      for (int i = 0; i < B; ++i) may |= values[i] != T(0) && Absolute(values[i]) * shrunk < Limits<T>::tiny;
      if (!may) continue;
      if (leaf.high > 0) return Restore(false);
      for (int i = 0; i < B; ++i) values[i] = T(0);
      some = true;
    }
    if (some) Execute<T, B>(code_.bounds.body, file_, ring_.File(next));
    return Restore(true);
  }

  bool Restore(bool answer) {
    std::copy(before_.begin(), before_.end(), file_);
    return answer;
  }

  // Multiplies the states by their factors of the updates from `next` on. What is infinite or NaN stays.
  void Cut(int64_t next) {
    for (int state = 0; state < code_.states; ++state) {
      const double product = ring_.Product(next, state);
      if (product == 1) continue;
      T* values = file_ + state * B;
      for (int i = 0; i < B; ++i) {
        const double value = values[i];
        values[i] = value - value == 0 ? static_cast<T>(value * product) : values[i];
      }
    }
  }

  const Table<T>& table_;
  const Code& code_;
  const Ring<T>& ring_;
  std::vector<T> memory_, before_;
  T *file_, *kept_;
  bool flushes_;
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

template void BringRows<float>(const Table<float>&, const Row<float>*, int64_t);
template void BringRows<double>(const Table<double>&, const Row<double>*, int64_t);

}  // namespace parallax_rows
