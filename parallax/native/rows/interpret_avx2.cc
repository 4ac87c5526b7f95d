// The interpreter for processors with AVX2.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "interpret_kinds.h"

#pragma GCC target("avx2")  // without fma: a product and a sum are rounded each
namespace parallax_rows {
namespace {
#include "interpret_rows.inc"
}  // namespace

void Bring_avx2(const Table<float>& table, const Row<float>* rows, int64_t count) { Bring(table, rows, count); }
void Bring_avx2(const Table<double>& table, const Row<double>* rows, int64_t count) { Bring(table, rows, count); }

}  // namespace parallax_rows
