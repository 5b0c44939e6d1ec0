# Origins: the line of the program that started an operation, at the cost of two pointers.

import contextlib
import os
import sys

from collectives import errors
from collectives.text.origin import Origin

cdef extern from *:
    """
    #include <frameobject.h> /* for Python 3.10 */

    #if PY_VERSION_HEX >= 0x030B0000
    #define cc_lasti PyFrame_GetLasti
    #define cc_line(code, at) PyCode_Addr2Line((PyCodeObject *)(code), at)
    #else
    #define cc_lasti PyFrame_GetLineNumber
    #define cc_line(code, at) (at)
    #endif

    /* Find the innermost frame of the program, outside the package and contextlib, which runs parts
     * of the package: a new reference, or NULL. */
    static PyFrameObject *cc_program(PyObject *package, PyObject *between)
    {
        PyFrameObject *frame = PyEval_GetFrame(), *back;
        PyCodeObject *code;
        int is_program;
        Py_XINCREF(frame);
        while (frame) {
            code = PyFrame_GetCode(frame);
            is_program =
                PyUnicode_Tailmatch(code->co_filename, package, 0, PY_SSIZE_T_MAX, -1) != 1 &&
                PyUnicode_Tailmatch(code->co_filename, between, 0, PY_SSIZE_T_MAX, -1) != 1;
            Py_DECREF(code);
            if (is_program)
                break;
            back = PyFrame_GetBack(frame);
            Py_DECREF(frame);
            frame = back;
        }
        return frame;
    }

    static uintptr_t cc_calling_frame(PyObject *package, PyObject *between)
    {
        PyFrameObject *frame = cc_program(package, between);
        Py_XDECREF(frame); /* it runs, so it stays */
        return (uintptr_t)frame;
    }

    /* Find the code that calls: a new reference, or NULL, and the place in it. The line is found
     * only when it is asked for, since that takes longer than all of this in a long function. */
    static PyObject *cc_caller(PyObject *package, PyObject *between, int *at)
    {
        PyFrameObject *frame = cc_program(package, between);
        PyObject *code;
        if (!frame)
            return NULL;
        code = (PyObject *)PyFrame_GetCode(frame);
        *at = cc_lasti(frame);
        Py_DECREF(frame);
        return code;
    }
    """
    void *PyEval_GetFrame()  # borrowed
    uintptr_t cc_calling_frame(object package, object between)
    PyObject *cc_caller(object package, object between, int *at)
    int cc_line(object code, int at)

cdef bint developing = sys.flags.dev_mode
cdef str package_folder = os.path.join(os.path.dirname(errors.__file__), "")
cdef str between_file = contextlib.contextmanager.__code__.co_filename


cdef inline uintptr_t calling_frame():
    """Return the frame of the program that calls, as a number; 0 if there is none."""
    return cc_calling_frame(package_folder, between_file)
