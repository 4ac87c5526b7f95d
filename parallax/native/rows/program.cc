// Parses programs. An error names the line, the violated rule, and the text found there.
#include "program.h"

#include <cstdlib>
#include <map>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace parallax_rows {
namespace {

using Words = std::vector<std::string>;

const std::map<std::string, Operation>& Operations() {
  static const auto* operations = new std::map<std::string, Operation>{
#define X(name, value) {#name, Operation::k_##name},
      ROWS_UNARY(X) ROWS_EIGEN_UNARY(X) ROWS_BINARY(X) ROWS_EIGEN_BINARY(X)
#undef X
          {"select", Operation::k_select}};
  return *operations;
}

absl::Status Broken(const std::string& rule) { return absl::InvalidArgumentError(rule); }

class Reader {
 public:
  explicit Reader(int gradients) { program_.gradients = gradients; }

  absl::Status Line(const Words& words) {
    const std::string& first = words[0];
    if (first == "states" || first == "scalars") return Count(words, first == "states");
    if (program_.next.empty() || !scalars_told_) return Broken("a program begins with `states N` and `scalars K`");
    if (first == "set") return Set(words);
    if (first == "decay") return Decay(words);
    if (first == "move") return Move(words);
    if (words.size() > 2 && words[1] == "=") return Assignment(words);
    return Broken("a line is `rI = OP operands`, `set sI operand`, `decay sI factor` or `move sI factor bound leaves`");
  }

  absl::StatusOr<Program> Finish() {
    if (program_.next.empty() || !scalars_told_) return Broken("a program begins with `states N` and `scalars K`");
    program_.covered = true;
    for (const Missed& missed : program_.missed) {
      program_.covered &= missed.known;
      for (const Leaf& leaf : missed.leaves) {
        const bool decays = !leaf.is_state || (program_.missed[leaf.index].known && !program_.missed[leaf.index].moves);
        if (decays) continue;
        return Broken(absl::StrCat("a state among the leaves of a `move` has a `decay`; s", leaf.index, " has not"));
      }
    }
    return program_;
  }

 private:
  absl::Status Count(const Words& words, bool states) {
    int count = 0;
    if (words.size() != 2 || !absl::SimpleAtoi(words[1], &count) || count < (states ? 1 : 0) || count > 1000) {
      return Broken("`states` takes a number from 1 to 1000, `scalars` one from 0 to 1000");
    }
    if (states ? !program_.next.empty() : scalars_told_) return Broken("`states` and `scalars` are told once");
    if (!states) {
      program_.scalars = count;
      scalars_told_ = true;
      return absl::OkStatus();
    }
    program_.states = count;
    program_.missed.resize(count);
    set_.assign(count, false);
    for (int state = 0; state < count; ++state) program_.next.push_back({Operand::kState, state, 0});
    return absl::OkStatus();
  }

  absl::Status Numbered(const std::string& word, int limit, const char* what, int* index) {
    if (word.size() > 1 && absl::SimpleAtoi(word.substr(1), index) && *index >= 0 && *index < limit) {
      return absl::OkStatus();
    }
    return Broken(absl::StrCat("`", word, "` is none of the ", limit, " ", what));
  }

  absl::Status Read(const std::string& word, Operand* operand) {
    if (word == "g") {
      operand->kind = Operand::kGradient;
      return absl::OkStatus();
    }
    if (word.size() > 2 && word.compare(0, 2, "c:") == 0) {
      char* end = nullptr;
      operand->kind = Operand::kConstant;
      operand->value = std::strtod(word.c_str() + 2, &end);
      return *end ? Broken(absl::StrCat("`", word, "` is no number in C's notation")) : absl::OkStatus();
    }
    switch (word[0]) {
      case 's':
        operand->kind = Operand::kState;
        return Numbered(word, program_.states, "states", &operand->index);
      case 'h':
        operand->kind = Operand::kScalar;
        return Numbered(word, program_.scalars, "scalars", &operand->index);
      case 'g':
        operand->kind = Operand::kGradient;
        return Numbered(word, program_.gradients, "gradients", &operand->index);
      case 'r':
        operand->kind = Operand::kRegister;
        return Numbered(word, program_.registers.size(), "registers written so far", &operand->index);
      default:
        return Broken(absl::StrCat("an operand is sI, g, gI, hI, rI or c:NUMBER, and not `", word, "`"));
    }
  }

  bool OfState(const Operand& operand) const {
    return operand.kind == Operand::kState ||
           (operand.kind == Operand::kRegister && program_.registers[operand.index].of_state);
  }

  bool OfGradient(const Operand& operand) const {
    return operand.kind == Operand::kGradient ||
           (operand.kind == Operand::kRegister && program_.registers[operand.index].of_gradient);
  }

  absl::Status Assignment(const Words& words) {
    if (words[0] != absl::StrCat("r", program_.registers.size())) {
      return Broken(absl::StrCat("registers are written once, in order, and the next is r", program_.registers.size()));
    }
    const auto found = Operations().find(words[2]);
    if (found == Operations().end()) return Broken(absl::StrCat("there is no operation `", words[2], "`"));
    const size_t count = OperandsOf(found->second);
    if (words.size() != 3 + count) return Broken(absl::StrCat("`", words[2], "` takes ", count, " operands"));
    Register made{found->second, std::vector<Operand>(count)};
    for (size_t place = 0; place < count; ++place) {
      const absl::Status read = Read(words[3 + place], &made.operands[place]);
      if (!read.ok()) return read;
      made.of_state |= OfState(made.operands[place]);
      made.of_gradient |= OfGradient(made.operands[place]);
    }
    program_.registers.push_back(std::move(made));
    return absl::OkStatus();
  }

  absl::Status State(const Words& words, size_t least, std::vector<bool>* told, const char* rule, int* state) {
    if (words.size() < least || words[1][0] != 's') return Broken(rule);
    const absl::Status read = Numbered(words[1], program_.states, "states", state);
    if (!read.ok()) return read;
    if ((*told)[*state]) return Broken(absl::StrCat("of a state this is told once, and `", words[1], "` has it"));
    (*told)[*state] = true;
    return absl::OkStatus();
  }

  absl::Status Set(const Words& words) {
    int state = 0;
    const absl::Status read = State(words, 3, &set_, "`set` takes a state and an operand", &state);
    if (!read.ok()) return read;
    if (words.size() != 3) return Broken("`set` takes a state and an operand");
    return Read(words[2], &program_.next[state]);
  }

  absl::Status Known(const Words& words, const char* rule, size_t least, int* state) {
    known_.resize(program_.states, false);
    const absl::Status read = State(words, least, &known_, rule, state);
    if (!read.ok()) return read;
    Missed& missed = program_.missed[*state];
    missed.known = true;
    const absl::Status factor = Read(words[2], &missed.factor);
    if (!factor.ok()) return factor;
    if (OfState(missed.factor)) return Broken("the factor of `decay` or `move` depends on no state");
    return absl::OkStatus();
  }

  absl::Status Decay(const Words& words) {
    int state = 0;
    if (words.size() != 3) return Broken("`decay` takes a state and a factor");
    return Known(words, "`decay` takes a state and a factor", 3, &state);
  }

  absl::Status Move(const Words& words) {
    int state = 0;
    const char* rule = "`move` takes a state, a factor, a bound and leaves like s1:-0.5:1";
    const absl::Status known = Known(words, rule, 4, &state);
    if (!known.ok()) return known;
    Missed& missed = program_.missed[state];
    missed.moves = true;
    const absl::Status bound = Read(words[3], &missed.bound);
    if (!bound.ok()) return bound;
    for (size_t place = 4; place < words.size(); ++place) {
      const Words parts = absl::StrSplit(words[place], ':');
      Operand of;
      Leaf leaf{};
      if (parts.size() != 3 || parts[0].empty() || parts[0][0] == 'g' || !Read(parts[0], &of).ok() ||
          (of.kind != Operand::kState && of.kind != Operand::kScalar) || !absl::SimpleAtod(parts[1], &leaf.low) ||
          !absl::SimpleAtod(parts[2], &leaf.high) || !(leaf.low <= leaf.high)) {
        return Broken(absl::StrCat("a leaf is a state or scalar with its lowest and highest power, like s1:-0.5:1, ",
                                   "and not `", words[place], "`"));
      }
      leaf.is_state = of.kind == Operand::kState;
      leaf.index = of.index;
      missed.leaves.push_back(leaf);
    }
    return absl::OkStatus();
  }

  Program program_;
  bool scalars_told_ = false;
  std::vector<bool> set_, known_;
};

}  // namespace

absl::StatusOr<Program> ReadProgram(const std::string& text, int gradients) {
  Reader reader(gradients);
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string code = line.substr(0, line.find('#'));
    const Words words = absl::StrSplit(code, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    const absl::Status read = reader.Line(words);
    if (!read.ok()) {
      return Broken(absl::StrCat("Line ", number, " of the program: ", read.message(), ". The line is `", line, "`."));
    }
  }
  auto finished = reader.Finish();
  if (!finished.ok()) return Broken(absl::StrCat("The program: ", finished.status().message(), "."));
  return finished;
}

}  // namespace parallax_rows
