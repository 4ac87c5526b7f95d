// A program made ready to run: instructions over vectors of a row's columns, and apart from them what is the same for
// all rows, which is computed once an update.
#ifndef PARALLAX_NATIVE_ROWS_CODE_H_
#define PARALLAX_NATIVE_ROWS_CODE_H_

#include <vector>

#include "program.h"

namespace parallax_rows {

// Operands are places in the file of vectors or in the file of scalars, as the form says.
enum Form { kVectors, kVectorScalar, kScalarVector, kScalarOnly, kForms };

struct Instruction {
  int code;  // operation * kForms + form
  int x, y, z, out;
};

struct Set {
  int state, from;
};

// The file of vectors: the states, the gradients, then registers.
struct Instructions {
  std::vector<Instruction> body;
  std::vector<Set> sets;     // what the body has not written in place
  std::vector<int> results;  // where the roots other than states stand
};

struct ScalarInstruction {
  Operation operation;
  int x, y, z, out;
};

struct Move {
  int state;
  std::vector<Leaf> leaves;
};

struct Code {
  int states = 0, scalars = 0, gradients = 1, vectors = 0;
  // The file of scalars: those of the update, then constants and what is computed of them.
  int scalar_file = 0;
  std::vector<std::pair<int, double>> constants;
  std::vector<ScalarInstruction> scalar_body;
  Instructions made;    // an update with a gradient
  Instructions missed;  // one whose gradient is zero
  Instructions bounds;  // the bounds of `moves`, of the states before a missed update
  bool covered = false;
  std::vector<int> factors;  // by state, places in the file of scalars; empty unless covered
  std::vector<Move> moves;
};

Code Compile(const Program& program);

}  // namespace parallax_rows

#endif
