// Deduplicates keys.
#ifndef PARALLAX_NATIVE_DISTINCT_H_
#define PARALLAX_NATIVE_DISTINCT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace parallax {

// Numbers the distinct keys in order of first occurrence.
class Distinct {
 public:
  explicit Distinct(size_t expected) {
    size_t size = 16;
    while (size < 2 * expected) size *= 2;
    places_.assign(size, -1);
    keys_.reserve(expected);
  }

  int NumberOf(int64_t key) {
    const size_t mask = places_.size() - 1;
    size_t place = (static_cast<uint64_t>(key) * 0x9E3779B97F4A7C15ull >> 20) & mask;
    while (places_[place] >= 0) {
      if (keys_[places_[place]] == key) return places_[place];
      place = (place + 1) & mask;
    }
    places_[place] = static_cast<int>(keys_.size());
    keys_.push_back(key);
    return places_[place];
  }

  const std::vector<int64_t>& keys() const { return keys_; }

 private:
  std::vector<int> places_;
  std::vector<int64_t> keys_;
};

}  // namespace parallax

#endif
