#include "teams.h"

#include <mutex>

namespace parallax {

namespace {

constexpr int kUnknownTeam = -2;

std::mutex teams_mutex;

std::vector<Teams*>& AllTeams() {
  static auto* teams = new std::vector<Teams*>;
  return *teams;
}

}  // namespace

Teams::Teams(MPI_Comm workers, int host, int group, int stage, int replica)
    : workers_(workers), host_(host), group_(group), stage_(stage), replica_(replica) {
  int rank = 0, size = 0;
  MPI_Comm_rank(workers_, &rank);
  MPI_Comm_size(workers_, &size);
  std::vector<int> hosts(size);
  MPI_Allgather(&host, 1, MPI_INT, hosts.data(), 1, MPI_INT, workers_);
  for (int one = 0; one < rank; ++one) place_ += hosts[one] == host;
  found_["workers"] = workers_;
}

MPI_Comm Teams::Find(const std::string& name) {
  auto known = found_.find(name);
  if (known != found_.end()) return known->second;
  const int color = ColorOf(name);
  if (color == kUnknownTeam) return MPI_COMM_NULL;
  int rank = 0;
  MPI_Comm_rank(workers_, &rank);
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Comm_split(workers_, color, rank, &made);
  return found_[name] = made;
}

int Teams::ColorOf(const std::string& name) const {
  if (name == "host") return host_;
  if (name == "across") return place_;
  if (name == "leaders") return place_ == 0 ? 0 : MPI_UNDEFINED;
  if (name == "group") return group_;
  if (name == "stage") return stage_;
  if (name == "replica") return replica_;
  return kUnknownTeam;
}

Teams* FindTeams(int number) {
  std::lock_guard<std::mutex> hold(teams_mutex);
  return AllTeams()[number];
}

}  // namespace parallax

// Registers this worker's position; the communicator is a Fortran handle. Returns a number for the calls below.
extern "C" int parallax_form_teams(int workers, int host, int group, int stage, int replica) {
  auto* teams = new parallax::Teams(MPI_Comm_f2c(workers), host, group, stage, replica);
  std::lock_guard<std::mutex> hold(parallax::teams_mutex);
  parallax::AllTeams().push_back(teams);
  return static_cast<int>(parallax::AllTeams().size()) - 1;
}

// Returns the communicator of a team as a Fortran handle (Teams::Find).
extern "C" int parallax_team(int teams, const char* name) {
  return MPI_Comm_c2f(parallax::FindTeams(teams)->Find(name));
}
