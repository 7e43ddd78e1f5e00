// When the gradients of a unit of work of an elastic job are applied: by script, and in random
// courses of a job whose members die at any moment.
#include "core/ps/server/elastic_schedule.h"

#include <deque>
#include <map>
#include <random>
#include <set>

#include "testing.h"

namespace tfdist::testing::ps_server_elastic_schedule_test {
namespace {

using namespace tfdist::ps;  // NOLINT: these tests are about nothing else
using Resolution = ElasticSchedule::Resolution;

constexpr uint64_t kJob = 70;

ResolveRequest Generation(uint64_t generation, uint64_t units, std::vector<uint32_t> workers,
                          uint64_t job = kJob) {
  return {{job, generation, units}, std::move(workers)};
}

TEST_CASE("all commit") {
  ElasticSchedule schedule(3);
  CHECK(!schedule.Push(0, {kJob, 1, 0}));  // no generation is known
  CHECK((!schedule.StepIsComplete() && !schedule.open_unit()));
  CHECK(schedule.Resolve(Generation(1, 0, {0, 2})) == Resolution::kNothing);
  for (uint64_t unit = 0; unit < 8; unit += 3) {
    CHECK((schedule.Push(2, {kJob, 1, unit}) && schedule.Push(0, {kJob, 1, unit})));
    CHECK(!schedule.Push(1, {kJob, 1, unit}));  // is no member
    CHECK((schedule.open_unit() == unit && !schedule.StepIsComplete()));
    CHECK((schedule.Commit(0, {kJob, 1, unit}) && schedule.Commit(0, {kJob, 1, unit})));
    CHECK((schedule.Commit(1, {kJob, 1, unit}) && !schedule.StepIsComplete()));
    CHECK((schedule.Commit(2, {kJob, 1, unit}) && schedule.StepIsComplete()));
    schedule.CloseStep();
    CHECK((!schedule.open_unit() && !schedule.StepIsComplete()));
    CHECK(schedule.Commit(2, {kJob, 1, unit}));  // again
    CHECK(!schedule.Commit(2, {kJob, 1, unit + 1}));
  }
}

TEST_CASE("resolutions") {
  ElasticSchedule schedule(3);
  CHECK(schedule.Resolve(Generation(4, 10, {0, 1, 2})) == Resolution::kNothing);
  CHECK((schedule.Push(0, {kJob, 4, 10}) && schedule.Commit(0, {kJob, 4, 10})));
  CHECK(schedule.Resolve(Generation(4, 11, {1})) == Resolution::kNothing);  // is known
  CHECK((schedule.open_unit() == 10 && schedule.Push(0, {kJob, 4, 10})));
  CHECK(schedule.Resolve(Generation(3, 11, {1})) == Resolution::kRefused);
  // No remaining worker has done unit 10.
  CHECK(schedule.Resolve(Generation(6, 10, {1, 2})) == Resolution::kDrop);
  CHECK((!schedule.open_unit() && schedule.generation() == 6));
  CHECK((!schedule.Push(1, {kJob, 4, 10}) && !schedule.Push(0, {kJob, 6, 10})));
  CHECK((schedule.Push(1, {kJob, 6, 10}) && schedule.Push(2, {kJob, 6, 10})));
  CHECK((schedule.Commit(1, {kJob, 4, 10}) && schedule.Commit(2, {kJob, 6, 10})));
  CHECK(!schedule.StepIsComplete());  // the commit of worker 0 went with its unit
  // Somebody has done it.
  CHECK(schedule.Resolve(Generation(7, 11, {0, 1})) == Resolution::kApply);
  CHECK((!schedule.open_unit() && schedule.Commit(1, {kJob, 7, 10})));
  CHECK(schedule.Resolve(Generation(8, 11, {0})) == Resolution::kNothing);
}

TEST_CASE("founded again") {
  ElasticSchedule schedule(2);
  CHECK(schedule.Resolve(Generation(9, 20, {0, 1})) == Resolution::kNothing);
  CHECK(schedule.Push(0, {kJob, 9, 20}));
  CHECK(schedule.Resolve(Generation(1, 0, {0, 1}, kJob + 1)) == Resolution::kDrop);
  CHECK((!schedule.Push(0, {kJob, 1, 0}) && schedule.Push(0, {kJob + 1, 1, 0})));
  CHECK(schedule.Resolve(Generation(10, 21, {0, 1})) == Resolution::kRefused);
  CHECK(schedule.Resolve(Generation(2, 1, {1}, kJob + 1)) == Resolution::kApply);
}

// A server that was started again may have an open unit that no worker will commit.
TEST_CASE("superseded") {
  ElasticSchedule schedule(2);
  CHECK(schedule.Resolve(Generation(1, 0, {0, 1})) == Resolution::kNothing);
  CHECK((schedule.Push(0, {kJob, 1, 5}) && !schedule.Supersedes(1, {kJob, 1, 5})));
  CHECK(schedule.Commit(0, {kJob, 1, 5}));
  CHECK((!schedule.Supersedes(1, {kJob, 1, 4}) && !schedule.Push(1, {kJob, 1, 4})));
  CHECK((schedule.Supersedes(1, {kJob, 1, 6}) == 5 && schedule.Push(1, {kJob, 1, 6})));
  CHECK((schedule.Commit(1, {kJob, 1, 6}) && !schedule.StepIsComplete()));
}

// A job of some members and two servers, in which anything happens in any order.
//
// A member does units of work: it pushes to both servers, waits for their answers, passes the gate,
// commits, waits for the answers, and meets the others before the next unit. It may be killed
// between any two of these steps. Its messages arrive in their order, also after its death, or not
// at all. A collective that has lost a member ends on any of the others, if all have taken part, or
// on none.
class Course {
 public:
  static constexpr int kServers = 2, kSlots = 4;
  static constexpr uint64_t kUnits = 5;

  explicit Course(uint32_t seed) : random_(seed) {
    servers_.resize(kServers);
    members_.resize(kSlots);
    for (int slot = 0; slot < 3; ++slot) members_[slot].lives = true;
    Form();
  }

  void Run() {
    kills_ = Pick(8);
    for (int i = 0; i < 5000; ++i) {
      if (IsOver()) break;
      const int act = Pick(20);
      if (act == 0 && kills_ > 0 && Pick(2) == 0) {
        Kill();
      } else if (act < 8) {
        Deliver(Pick(kSlots), Pick(kServers));
      } else {
        const int slot = Pick(kSlots);
        if (slot != slow_ || Pick(8) == 0) Step(&members_[slot]);
      }
    }
    CHECK(IsOver());
    for (int server = 0; server < kServers; ++server) {
      for (uint64_t unit = 0; unit < kUnits; ++unit) {
        CHECK(servers_[server].applied[unit] == 1);
      }
    }
  }

 private:
  enum class Phase {
    kAgreeing,
    kReceiving,
    kEqual,
    kResolving,
    kMeeting,
    kPushing,
    kGate,
    kCommitting,
    kForming
  };
  struct Message {
    enum { kPush, kCommit, kResolve } kind = kPush;
    UnitOfWork unit;
    ResolveRequest resolve;
  };
  struct Member {
    bool lives = false, is_new = false;
    Phase phase = Phase::kForming;
    uint64_t units = 0, generation = 0;
    std::deque<Message> sent[kServers];
    int unanswered = 0;
  };
  struct Server {
    ElasticSchedule schedule{kSlots};
    std::set<int> sums;
    std::set<int> expected;  // to push in the open unit
    std::map<uint64_t, int> applied;
  };
  struct World {
    std::set<int> slots;
    std::map<int, uint64_t> units;  // by slot: of workers that have reported
    bool has_sent = false;          // the source
    // The slots that have come to a collective of a unit.
    std::map<std::pair<Phase, uint64_t>, std::set<int>> came;
  };

  int Pick(int count) { return static_cast<int>(random_() % static_cast<uint32_t>(count)); }

  bool IsOver() const {
    for (const Member& member : members_) {
      if (!member.lives) continue;
      const bool is_done = member.units >= kUnits && member.phase == Phase::kMeeting;
      if (!is_done || HasLost(member) || world_.came.count({Phase::kMeeting, kUnits}) == 0 ||
          world_.came.at({Phase::kMeeting, kUnits}).size() < world_.slots.size()) {
        return false;
      }
    }
    return true;
  }

  // Not the last member with the state.
  void Kill() {
    const int slot = Pick(kSlots);
    int others = 0;
    for (int i = 0; i < kSlots; ++i) {
      others += i != slot && members_[i].lives && !members_[i].is_new;
    }
    if (!members_[slot].lives || others == 0) return;
    const Phase phase = members_[slot].phase;
    const bool waits = phase == Phase::kAgreeing || phase == Phase::kMeeting;
    if ((waits || Newest() == 0) && Pick(16) != 0) return;
    members_[slot].lives = false;
    --kills_;
  }

  bool HasLost(const Member& member) const {
    if (member.generation != generation_) return true;
    for (const int slot : world_.slots) {
      if (!members_[slot].lives || members_[slot].generation != generation_) return true;
      if (members_[slot].phase == Phase::kForming) return true;
    }
    return false;
  }

  // Whether a collective ends here; else the member may find out that it never will.
  bool Collective(int slot, Member* member, Phase phase, uint64_t unit) {
    auto& came = world_.came[{phase, unit}];
    came.insert(slot);
    const bool fails = HasLost(*member);
    if (came.size() == world_.slots.size() && (!fails || Pick(2) == 0)) return true;
    if (fails && Pick(2) == 0) member->phase = Phase::kForming;
    return false;
  }

  void Send(Member* member, const Message& message) {
    for (auto& sent : member->sent) sent.push_back(message);
    member->unanswered = kServers;
  }

  UnitOfWork UnitOf(const Member& member, uint64_t number) const {
    return {kJob, member.generation, number};
  }

  void Step(Member* member) {
    if (!member->lives) return;
    const int slot = static_cast<int>(member - members_.data());
    if (member->phase != Phase::kForming && member->generation != generation_) {
      member->phase = Phase::kForming;
    }
    switch (member->phase) {
      case Phase::kForming:
        return Form();
      case Phase::kAgreeing:
        world_.units.emplace(slot, member->is_new ? 0 : member->units);
        if (Collective(slot, member, Phase::kAgreeing, 0)) member->phase = Phase::kReceiving;
        return;
      case Phase::kReceiving: {
        const uint64_t newest = Newest();
        const bool is_source = !member->is_new && member->units == newest;
        world_.has_sent = world_.has_sent || is_source;
        const bool fails = !is_source && HasLost(*member) && Pick(2) == 0;
        if (fails) {
          member->phase = Phase::kForming;
        } else if (is_source || world_.has_sent) {
          member->units = newest;
          member->is_new = false;
          member->phase = Phase::kEqual;
        }
        return;
      }
      case Phase::kEqual:
        if (!Collective(slot, member, Phase::kEqual, 0)) return;
        member->phase = Phase::kResolving;
        return Send(member, {Message::kResolve, {}, Resolve(*member)});
      case Phase::kResolving:
        if (member->unanswered == 0) member->phase = Phase::kMeeting;
        return;
      case Phase::kMeeting:
        if (!Collective(slot, member, Phase::kMeeting, member->units)) return;
        if (member->units >= kUnits) return;
        member->phase = Phase::kPushing;
        return Send(member, {Message::kPush, UnitOf(*member, member->units), {}});
      case Phase::kPushing:
        if (member->unanswered == 0) member->phase = Phase::kGate;
        return;
      case Phase::kGate:
        if (!Collective(slot, member, Phase::kGate, member->units)) return;
        member->phase = Phase::kCommitting;
        Send(member, {Message::kCommit, UnitOf(*member, member->units), {}});
        ++member->units;
        return;
      case Phase::kCommitting:
        if (member->unanswered == 0) member->phase = Phase::kMeeting;
        return;
    }
  }

  uint64_t Newest() const {
    uint64_t newest = 0;
    for (const auto& [slot, units] : world_.units) newest = std::max(newest, units);
    return newest;
  }

  ResolveRequest Resolve(const Member& member) const {
    return {UnitOf(member, member.units), {world_.slots.begin(), world_.slots.end()}};
  }

  // All that live have to come.
  void Form() {
    for (const Member& member : members_) {
      if (member.lives && member.phase != Phase::kForming) return;
    }
    ++generation_;
    world_ = World();
    for (int slot = 0; slot < kSlots; ++slot) {
      Member& member = members_[slot];
      if (!member.lives && generation_ > 1 && Pick(3) == 0) {
        // Data of its former process is lost with its connection.
        member = Member();
        member.lives = member.is_new = true;
      }
      if (!member.lives) continue;
      member.phase = Phase::kAgreeing;
      member.generation = generation_;
      world_.slots.insert(slot);
    }
    slots_[generation_] = world_.slots;
    slow_ = Pick(kSlots);
  }

  void Deliver(int slot, int number) {
    Member& member = members_[slot];
    Server& server = servers_[number];
    if (member.sent[number].empty()) return;
    const Message message = member.sent[number].front();
    member.sent[number].pop_front();
    if (message.kind == Message::kResolve) {
      const auto open = server.schedule.open_unit();
      const Resolution resolution = server.schedule.Resolve(message.resolve);
      if (resolution == Resolution::kApply) Apply(&server, *open);
      if (resolution == Resolution::kDrop) server.sums.clear();
    } else if (message.kind == Message::kPush) {
      CHECK(!server.schedule.Supersedes(slot, message.unit));
      if (server.schedule.Push(slot, message.unit)) {
        CHECK(server.sums.insert(slot).second);
        server.expected = slots_.at(message.unit.generation);
      }
    } else {
      CHECK(server.schedule.Commit(slot, message.unit));
      if (server.schedule.StepIsComplete()) {
        Apply(&server, *server.schedule.open_unit());
        server.schedule.CloseStep();
      }
    }
    if (--member.unanswered < 0) member.unanswered = 0;
  }

  void Apply(Server* server, uint64_t unit) {
    CHECK(server->sums == server->expected);
    CHECK(++server->applied[unit] == 1);
    server->sums.clear();
  }

  std::mt19937 random_;
  std::vector<Server> servers_;
  std::vector<Member> members_;
  World world_;
  std::map<uint64_t, std::set<int>> slots_;  // by generation
  uint64_t generation_ = 0;
  int kills_ = 0, slow_ = 0;
};

TEST_CASE("random courses") {
  const auto seeds = static_cast<uint32_t>(Rounds(20000));
  for (uint32_t seed = 1; seed <= seeds; ++seed) Course(seed).Run();
}

}  // namespace
}  // namespace tfdist::testing::ps_server_elastic_schedule_test
