// Takes the interpreter that this processor can run.
#include "interpret.h"

#include "interpret_kinds.h"

namespace parallax_rows {

template <typename T>
void BringRows(const Table<T>& table, const Row<T>* rows, int64_t count) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return Bring_avx2(table, rows, count);
  Bring_baseline(table, rows, count);
}

template void BringRows<float>(const Table<float>&, const Row<float>*, int64_t);
template void BringRows<double>(const Table<double>&, const Row<double>*, int64_t);

}  // namespace parallax_rows
