#include "launcher/command_options.h"

#include <cstdio>
#include <sstream>

#include "launcher/arguments.h"
#include "runtime/base/error.h"

namespace ananke {

namespace po = boost::program_options;

CommandOptions::CommandOptions(std::string verb, std::string usage, std::string description)
    : verb_(std::move(verb)), usage_(std::move(usage)), description_(std::move(description)) {
  visible_.add_options()("help,h", "this text");
}

void CommandOptions::word(const char* name, std::string& value) { places_.push_back({name, &value}); }

bool CommandOptions::read(const std::vector<std::string>& arguments) {
  po::options_description all;
  all.add(visible_).add_options()("words", po::value(&words_));
  po::positional_options_description places;
  places.add("words", -1);
  po::variables_map values;
  read_arguments(arguments, all, places, &values);
  if (values.count("help") != 0) {
    std::ostringstream text;
    text << visible_;
    std::printf("usage: ananke %s %s\n\n%s\n\n%s", verb_.c_str(), usage_.c_str(), description_.c_str(),
                text.str().c_str());
    return false;
  }
  if (words_.size() != places_.size()) {
    std::string names;
    for (const Word& place : places_) names += (names.empty() ? "" : " ") + place.name;
    misused(fmt::format("{} words without an option's name, needs {}", words_.size(),
                        places_.empty() ? "none" : (places_.size() == 1 ? "exactly one " : "exactly ") + names));
  }
  for (std::size_t i = 0; i < places_.size(); ++i) *places_[i].value = words_[i];
  return true;
}

void CommandOptions::misused(const std::string& what) const {
  fail(ErrorKind::usage, "{}: {}; usage: ananke {} {}", verb_, what, verb_, usage_);
}

}  // namespace ananke
