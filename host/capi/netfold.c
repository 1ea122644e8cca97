/* SPDX-License-Identifier: Apache-2.0
 *
 * netfold.h on CPython: calls.py makes the calls.  Each function here checks its pointers, enters CPython, calls the
 * function of its name there, and turns an exception into a status and this thread's text.
 *
 * netfold_comm and netfold_request are Python objects under another name.  NETFOLD_PYTHON, the interpreter in whose
 * environment netfold is installed, is set by library.py.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "netfold.h"

#define EXPORT __attribute__((visibility("default")))

static _Thread_local char text[8192]; /* of netfold_error */

static PyObject *calls; /* the module calls.py; NULL: CPython could not be started, for why_not */
static char why_not[1024];
static pthread_once_t started = PTHREAD_ONCE_INIT;

static const size_t ELEMENT_BYTES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2}; /* by netfold_dtype */

/* The text of the exception that is set, which is cleared, in `into`. */
static void describe(char *into, size_t room) {
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    PyObject *words = value ? PyObject_Str(value) : NULL;
    const char *utf8 = words ? PyUnicode_AsUTF8(words) : NULL;
    snprintf(into, room, "%s", utf8 ? utf8 : "an exception without a text");
    Py_XDECREF(words);
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
}

/* A fork by C code needs what os.fork does around its own: then a child's sockets and communicators end there, too.
 * Forks that CPython makes itself come with its lock held. */
static _Thread_local int forks;
static _Thread_local PyGILState_STATE at_fork;

static void before_fork(void) {
    forks = !PyGILState_Check();
    if (forks) {
        at_fork = PyGILState_Ensure();
        PyOS_BeforeFork();
    }
}

static void after_fork_in_parent(void) {
    if (forks) {
        PyOS_AfterFork_Parent();
        PyGILState_Release(at_fork);
    }
}

static void after_fork_in_child(void) {
    if (forks) {
        PyOS_AfterFork_Child();
        PyGILState_Release(at_fork);
    }
}

/* Shows CPython's names to its extension modules, which are not linked with it: a program that has loaded this library
 * by dlopen may have kept them to itself. */
static void show_names(void) {
    Dl_info python;
    if (dladdr((void *)(uintptr_t)Py_InitializeFromConfig, &python) && python.dli_fname)
        dlopen(python.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

/* CPython as the interpreter NETFOLD_PYTHON runs it.  Signals stay the program's. */
static PyStatus initialize(void) {
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    config.parse_argv = 0;
    PyStatus status = PyConfig_SetBytesString(&config, &config.program_name, NETFOLD_PYTHON);
    if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    return status;
}

static void start(void) {
    int ours = !Py_IsInitialized();
    if (ours) {
        show_names();
        PyStatus status = initialize();
        if (PyStatus_Exception(status)) {
            snprintf(why_not, sizeof why_not, "CPython of %s does not start: %s", NETFOLD_PYTHON,
                     status.err_msg ? status.err_msg : "it gives no reason");
            return;
        }
    }
    PyGILState_STATE state = PyGILState_Ensure();
    calls = PyImport_ImportModule("netfold.host.capi.calls");
    if (!calls) {
        size_t said = (size_t)snprintf(why_not, sizeof why_not,
                                       "no netfold in the Python of %s: ", ours ? NETFOLD_PYTHON : "this process");
        describe(why_not + said, sizeof why_not - said);
    }
    PyGILState_Release(state);
    if (ours) {
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
        PyEval_SaveThread(); /* whoever calls next, in whatever thread, takes the lock */
    }
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */
static netfold_status fail(netfold_status status, const char *function, const char *words) {
    snprintf(text, sizeof text, "%s: %s", function, words);
    return status;
}

/* Enters CPython.  Returns whether it runs; if not, the text is set, and leave() must not be called. */
static int enter(const char *function, PyGILState_STATE *state) {
    text[0] = 0;
    pthread_once(&started, start);
    if (!calls) {
        fail(NETFOLD_SYSTEM, function, why_not);
        return 0;
    }
    *state = PyGILState_Ensure();
    return 1;
}

/* The status and the text of the exception that is set, which is cleared. */
static netfold_status raised(void) {
    PyObject *kind, *value, *trace;
    int status = NETFOLD_INTERNAL;
    const char *words;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    PyObject *said = PyObject_CallMethod(calls, "failure", "O", value);
    if (said && PyArg_ParseTuple(said, "is", &status, &words))
        snprintf(text, sizeof text, "%s", words);
    else
        describe(text, sizeof text);
    Py_XDECREF(said);
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return (netfold_status)status;
}

/* Ends a call that has entered: gives its result to *to, which may be NULL, or its exception's status. */
static netfold_status leave(PyGILState_STATE state, PyObject *result, void **to) {
    netfold_status status = result ? NETFOLD_OK : raised();
    if (result && to && result != Py_None)
        *to = result;
    else
        Py_XDECREF(result);
    PyGILState_Release(state);
    return status;
}

/* Memory of count elements, `times` over, as a memoryview; NULL with ValueError where it cannot be, or with the
 * exception that is set. */
static PyObject *memory(const char *name, const void *at, size_t count, size_t times, netfold_dtype dtype, int flags) {
    size_t known = sizeof ELEMENT_BYTES / sizeof ELEMENT_BYTES[0], each = 1, bytes;
    if (PyErr_Occurred()) return NULL;
    if ((size_t)dtype < known) each = ELEMENT_BYTES[dtype]; /* calls.py refuses others */
    if (__builtin_mul_overflow(count, each, &bytes) || __builtin_mul_overflow(bytes, times, &bytes) ||
        bytes > PY_SSIZE_T_MAX)
        return PyErr_Format(PyExc_ValueError, "%s: %zu elements for %zu ranks are more than memory can be", name, count,
                            times);
    if (!at && bytes) return PyErr_Format(PyExc_ValueError, "%s is NULL: expected %zu bytes", name, bytes);
    static char nothing[1];
    return PyMemoryView_FromMemory(at ? (char *)(uintptr_t)at : nothing, (Py_ssize_t)bytes, flags);
}

/* Whether two pieces of memory are apart, or the smaller one is the part-th piece of its size of the other; with
 * ValueError where they are not, and with the exception that is set where one of them is NULL. */
static int apart(PyObject *whole, PyObject *piece, size_t part) {
    if (!whole || !piece) return 0;
    const Py_buffer *a = PyMemoryView_GET_BUFFER(whole), *b = PyMemoryView_GET_BUFFER(piece);
    uintptr_t begin = (uintptr_t)a->buf, at = (uintptr_t)b->buf, own = begin + part * (size_t)b->len;
    if (begin + (size_t)a->len <= at || at + (size_t)b->len <= begin || at == own) return 1;
    PyErr_Format(
        PyExc_ValueError,
        "send and receive overlap: %zd bytes at %p and %zd at %p. Let them be apart, or the smaller one at %p, "
        "this rank's part",
        a->len, a->buf, b->len, b->buf, (void *)own);
    return 0;
}

/* The communicator's number of ranks, or another number that it has; with an exception set where it has none. */
static size_t size_of(netfold_comm *comm, const char *name) {
    PyObject *size = PyErr_Occurred() ? NULL : PyObject_GetAttrString((PyObject *)comm, name);
    size_t number = size ? PyLong_AsSize_t(size) : 0;
    Py_XDECREF(size);
    return number;
}

#define ENTER(NULL_POINTERS)                                                                                          \
    PyGILState_STATE state;                                                                                           \
    if (NULL_POINTERS) return fail(NETFOLD_INVALID, __func__, "a pointer is NULL that must not be: " #NULL_POINTERS); \
    if (!enter(__func__, &state)) return NETFOLD_SYSTEM

/* ---- the functions of netfold.h, in its order -------------------------------------------------------------------- */
EXPORT int netfold_api_version(void) { return NETFOLD_API_VERSION; }

EXPORT const char *netfold_error(void) { return text; }

EXPORT const char *netfold_status_name(netfold_status status) {
    static const char *const NAMES[] = {"NETFOLD_OK",       "NETFOLD_INVALID", "NETFOLD_REFUSED",
                                        "NETFOLD_MISMATCH", "NETFOLD_LOST",    "NETFOLD_TIMEOUT",
                                        "NETFOLD_CLOSED",   "NETFOLD_SYSTEM",  "NETFOLD_INTERNAL"};
    return (size_t)status < sizeof NAMES / sizeof NAMES[0] ? NAMES[status] : "unknown status";
}

EXPORT void netfold_options_init(netfold_options *options) {
    if (!options) return;
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->rank = options->reproducible = -1;
}

EXPORT netfold_status netfold_join(const netfold_options *options, netfold_comm **comm) {
    netfold_options o;
    netfold_options_init(&o);
    if (comm) *comm = NULL;
    if (options && (options->size < offsetof(netfold_options, job) + sizeof o.job || options->size > sizeof o))
        return fail(NETFOLD_INVALID, __func__,
                    "options->size is not that of a netfold_options of this library or an "
                    "older one: call netfold_options_init first");
    if (options) memcpy(&o, options, options->size);
    ENTER(!comm);
    PyObject *joined =
        PyObject_CallMethod(calls, "join", "ziizzzzzddii", o.job, o.rank, o.world, o.address, o.controller, o.token,
                            o.rail, o.algorithm, o.timeout, o.join_timeout, o.lane_bits, o.reproducible);
    return leave(state, joined, (void **)comm);
}

EXPORT netfold_status netfold_group(netfold_comm *comm, const int *members, int count, netfold_comm **group) {
    if (group) *group = NULL;
    ENTER(!comm || !group || (count > 0 && !members));
    PyObject *made = NULL, *arguments = PyTuple_New(1 + (count > 0 ? count : 0));
    if (arguments) {
        Py_INCREF((PyObject *)comm);
        PyTuple_SET_ITEM(arguments, 0, (PyObject *)comm);
        for (int i = 0; i < count; i++) PyTuple_SET_ITEM(arguments, 1 + i, PyLong_FromLong(members[i]));
        PyObject *function = PyErr_Occurred() ? NULL : PyObject_GetAttrString(calls, "group");
        made = function ? PyObject_CallObject(function, arguments) : NULL;
        Py_XDECREF(function);
        Py_DECREF(arguments);
    }
    return leave(state, made, (void **)group);
}

/* A number that the communicator has under this name; -1 with the text where it has none. */
static int number(const char *function, netfold_comm *comm, const char *name) {
    PyGILState_STATE state;
    if (!comm) return fail(NETFOLD_INVALID, function, "comm is NULL"), -1;
    if (!enter(function, &state)) return -1;
    PyObject *found = PyObject_GetAttrString((PyObject *)comm, name);
    long value = found ? PyLong_AsLong(found) : -1;
    if (PyErr_Occurred()) Py_CLEAR(found);
    return leave(state, found, NULL) == NETFOLD_OK ? (int)value : -1;
}

EXPORT int netfold_rank(netfold_comm *comm) { return number(__func__, comm, "rank"); }

EXPORT int netfold_size(netfold_comm *comm) { return number(__func__, comm, "size"); }

EXPORT netfold_status netfold_explain(netfold_comm *comm, size_t bytes, char *into, size_t room) {
    ENTER(!comm || !into || !room);
    PyObject *words = PyObject_CallMethod(calls, "explain", "OK", comm, (unsigned long long)bytes);
    const char *utf8 = words ? PyUnicode_AsUTF8(words) : NULL;
    snprintf(into, room, "%s", utf8 ? utf8 : "");
    if (!utf8) Py_CLEAR(words);
    return leave(state, words, NULL);
}

/* A reduction of calls.py between two pieces of memory, which are released; NULL where they cannot be. */
static PyObject *reduction(const char *name, netfold_comm *comm, PyObject *source, PyObject *out, netfold_dtype dtype,
                           netfold_op op, size_t part, int begins) {
    PyObject *done = NULL;
    if (apart(source, out, part))
        done = PyObject_CallMethod(calls, name, "OOOiii", comm, source, out, (int)dtype, (int)op, begins);
    Py_XDECREF(source);
    Py_XDECREF(out);
    return done;
}

EXPORT netfold_status netfold_allreduce(netfold_comm *comm, const void *send, void *receive, size_t count,
                                        netfold_dtype dtype, netfold_op op, netfold_request **request) {
    if (request) *request = NULL;
    ENTER(!comm);
    PyObject *source = memory("send", send, count, 1, dtype, PyBUF_READ);
    PyObject *out = memory("receive", receive, count, 1, dtype, PyBUF_WRITE);
    return leave(state, reduction("allreduce", comm, source, out, dtype, op, 0, request != NULL), (void **)request);
}

EXPORT netfold_status netfold_reduce_scatter(netfold_comm *comm, const void *send, void *receive, size_t count,
                                             netfold_dtype dtype, netfold_op op, netfold_request **request) {
    if (request) *request = NULL;
    ENTER(!comm);
    size_t part = size_of(comm, "rank");
    PyObject *source = memory("send", send, count, size_of(comm, "size"), dtype, PyBUF_READ);
    PyObject *out = memory("receive", receive, count, 1, dtype, PyBUF_WRITE);
    return leave(state, reduction("reduce_scatter", comm, source, out, dtype, op, part, request != NULL),
                 (void **)request);
}

EXPORT netfold_status netfold_all_gather(netfold_comm *comm, const void *send, void *receive, size_t count,
                                         netfold_dtype dtype, netfold_request **request) {
    if (request) *request = NULL;
    ENTER(!comm);
    size_t part = size_of(comm, "rank");
    PyObject *source = memory("send", send, count, 1, dtype, PyBUF_READ);
    PyObject *out = memory("receive", receive, count, size_of(comm, "size"), dtype, PyBUF_WRITE);
    PyObject *done = NULL;
    if (apart(out, source, part))
        done = PyObject_CallMethod(calls, "all_gather", "OOOii", comm, source, out, (int)dtype, request != NULL);
    Py_XDECREF(source);
    Py_XDECREF(out);
    return leave(state, done, (void **)request);
}

EXPORT netfold_status netfold_broadcast(netfold_comm *comm, void *buffer, size_t count, netfold_dtype dtype, int root,
                                        netfold_request **request) {
    if (request) *request = NULL;
    ENTER(!comm);
    PyObject *done = NULL, *data = memory("buffer", buffer, count, 1, dtype, PyBUF_WRITE);
    if (data) done = PyObject_CallMethod(calls, "broadcast", "OOiii", comm, data, (int)dtype, root, request != NULL);
    Py_XDECREF(data);
    return leave(state, done, (void **)request);
}

EXPORT netfold_status netfold_barrier(netfold_comm *comm, netfold_request **request) {
    if (request) *request = NULL;
    ENTER(!comm);
    return leave(state, PyObject_CallMethod(calls, "barrier", "Oi", comm, request != NULL), (void **)request);
}

EXPORT netfold_status netfold_test(netfold_request *request, int *done) {
    ENTER(!request || !done);
    PyObject *is = PyObject_CallMethod((PyObject *)request, "done", NULL);
    *done = is && PyObject_IsTrue(is) == 1;
    return leave(state, is, NULL);
}

/* Calls a method that ends an object's use, and gives the object back in any case. */
static netfold_status end(PyGILState_STATE state, PyObject *object, const char *method) {
    PyObject *result = PyObject_CallMethod(object, method, NULL);
    netfold_status status = result ? NETFOLD_OK : raised();
    Py_XDECREF(result);
    Py_DECREF(object);
    PyGILState_Release(state);
    return status;
}

EXPORT netfold_status netfold_wait(netfold_request *request) {
    ENTER(!request);
    return end(state, (PyObject *)request, "wait");
}

EXPORT netfold_status netfold_abort(netfold_comm *comm, const char *why) {
    ENTER(!comm);
    if (!why) why = "the program gave it up";
    PyObject *words = PyUnicode_DecodeUTF8(why, (Py_ssize_t)strlen(why), "replace"); /* or NULL, which "N" passes on */
    return leave(state, PyObject_CallMethod(calls, "abort", "ON", comm, words), NULL);
}

EXPORT netfold_status netfold_leave(netfold_comm *comm) {
    ENTER(!comm);
    return end(state, (PyObject *)comm, "close");
}
