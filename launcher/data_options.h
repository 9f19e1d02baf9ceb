// Command-line options of the `data` commands.
#pragma once

#include <boost/program_options.hpp>
#include <cstdio>
#include <sstream>

#include "launcher/arguments.h"
#include "runtime/base/error.h"

namespace ananke {

namespace po = boost::program_options;

// One verb's options; the words without a name are gathered under `positional`.
class DataOptions {
 public:
  DataOptions(std::string verb, std::string usage) : verb_(std::move(verb)), usage_(std::move(usage)) {
    visible_.add_options()("help,h", "this text");
  }
  po::options_description_easy_init add() { return visible_.add_options(); }
  void positional(const char* name, std::vector<std::string>& words) {
    hidden_.add_options()(name, po::value(&words));
    places_.add(name, -1);
  }

  // False: the help was asked for, and printed.
  bool read(const std::vector<std::string>& arguments) {
    po::options_description all;
    all.add(visible_).add(hidden_);
    po::variables_map values;
    read_arguments(arguments, all, places_, &values);
    if (!values.count("help")) return true;
    std::ostringstream text;
    text << visible_;
    std::printf("usage: ananke data %s %s\n\n%s", verb_.c_str(), usage_.c_str(), text.str().c_str());
    return false;
  }
  [[noreturn]] void misused(const std::string& what) const {
    fail(ErrorKind::usage, "data {}: {}; usage: ananke data {} {}", verb_, what, verb_, usage_);
  }

 private:
  std::string verb_;
  std::string usage_;
  po::options_description visible_{"options"};
  po::options_description hidden_;
  po::positional_options_description places_;
};

}  // namespace ananke
