// The scalars of a table's last updates, and queries over all updates since some update.
#ifndef PARALLAX_NATIVE_ROWS_RING_H_
#define PARALLAX_NATIVE_ROWS_RING_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "code.h"

namespace parallax_rows {

// A summary of the updates from some number up to the last.
struct Extent {
  double least = std::numeric_limits<double>::infinity(), greatest = 0;  // magnitudes
  double product = 1;

  void Add(double value) {
    double magnitude = std::fabs(value);
    if (magnitude != magnitude) least = 0, magnitude = std::numeric_limits<double>::infinity();
    if (magnitude < least) least = magnitude;
    if (magnitude > greatest) greatest = magnitude;
    product *= value;
  }
};

// The scalar file of an update: its inputs, constants, and values computed from both.
template <typename T, typename S>
void FillScalars(const Code& code, const T* scalars, S* file) {
  for (int i = 0; i < code.scalars; ++i) file[i] = static_cast<S>(scalars[i]);
  for (const auto& [place, value] : code.constants) file[place] = static_cast<S>(value);
  for (const ScalarInstruction& one : code.scalar_body) {
    file[one.out] = Apply<S>(one.operation, file[one.x], file[one.y], file[one.z]);
  }
}

// Updates are numbered from 1. The ring holds at least the last `length` of them.
//
// Extents are kept for ranges that begin at each kBlock-th update, so a new update is added to each of these. A query
// about all updates since number n is answered for those since the beginning of n's block: for some more, never for
// fewer.
template <typename T>
class Ring {
 public:
  static constexpr int64_t kBlock = 64;

  Ring(const Code& code, int64_t length)
      : code_(code),
        blocks_((length + kBlock - 1) / kBlock + 1),
        files_(blocks_ * kBlock * code.scalar_file),
        factors_(blocks_ * kBlock * code.factors.size()),
        extents_(blocks_ * Kinds()),
        wide_(code.scalar_file) {}

  int64_t last() const { return last_; }

  // The scalar file of an update.
  const T* File(int64_t number) const { return &files_[number % (blocks_ * kBlock) * code_.scalar_file]; }

  // From this update on all scalars are those of the last one.
  int64_t same_since() const { return same_since_; }

  const Extent& Scalar(int64_t since, int scalar) const { return Extents(since)[code_.factors.size() + scalar]; }
  const Extent& Factor(int64_t since, int state) const { return Extents(since)[state]; }

  // The product of a state's factors from an update on.
  double Product(int64_t since, int state) const {
    double product = 1;
    for (; since % kBlock && since <= last_; ++since) product *= FactorsOf(since)[state];
    return since <= last_ ? product * Factor(since, state).product : product;
  }

  void Push(const T* scalars) {
    ++last_;
    T* file = &files_[last_ % (blocks_ * kBlock) * code_.scalar_file];
    FillScalars(code_, scalars, file);
    if (last_ == 1 || std::memcmp(file, File(last_ - 1), sizeof(T) * code_.scalars)) same_since_ = last_;
    if (code_.covered) Summarize(scalars);
  }

 private:
  int64_t Kinds() const { return code_.covered ? code_.factors.size() + code_.scalars : 0; }
  const Extent* Extents(int64_t since) const { return &extents_[since / kBlock % blocks_ * Kinds()]; }
  const double* FactorsOf(int64_t number) const {
    return &factors_[number % (blocks_ * kBlock) * code_.factors.size()];
  }

  // Factors are computed in double: many of them are multiplied.
  void Summarize(const T* scalars) {
    FillScalars(code_, scalars, wide_.data());
    const size_t states = code_.factors.size();
    double* factors = const_cast<double*>(FactorsOf(last_));
    for (size_t state = 0; state < states; ++state) factors[state] = wide_[code_.factors[state]];
    Extent* current = const_cast<Extent*>(Extents(last_));
    if (last_ % kBlock == 0 || last_ == 1) std::fill(current, current + Kinds(), Extent());
    for (int64_t block = 0; block < blocks_; ++block) {
      Extent* extents = &extents_[block * Kinds()];
      for (size_t state = 0; state < states; ++state) extents[state].Add(factors[state]);
      for (int scalar = 0; scalar < code_.scalars; ++scalar) extents[states + scalar].Add(wide_[scalar]);
    }
  }

  const Code& code_;
  const int64_t blocks_;
  std::vector<T> files_;
  std::vector<double> factors_;
  std::vector<Extent> extents_;  // [blocks, states and scalars]
  std::vector<double> wide_;
  int64_t last_ = 0, same_since_ = 0;
};

}  // namespace parallax_rows

#endif
