// The interpreters: one for each kind of processor.
#ifndef PARALLAX_NATIVE_ROWS_INTERPRET_KINDS_H_
#define PARALLAX_NATIVE_ROWS_INTERPRET_KINDS_H_

#include "interpret.h"

namespace parallax_rows {

#define ROWS_KIND(Name)                                               \
  void Name(const Table<float>&, const Row<float>*, int64_t);         \
  void Name(const Table<double>&, const Row<double>*, int64_t);
ROWS_KIND(Bring_baseline)
ROWS_KIND(Bring_avx2)
#undef ROWS_KIND

}  // namespace parallax_rows

#endif
